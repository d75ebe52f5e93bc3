"""Tokens of Microsoft Entra ID for Azure OpenAI, from what the environment offers.

In this order, by the variables that Azure itself documents: a client with its secret, a client with a federated token (workload
identity), the managed identity of an App Service, the managed identity of a virtual machine.
"""

from collections.abc import Mapping

from mainspring.core.errors import InvalidRequest
from mainspring.providers.credentials import (
    BearerSigner,
    Expiring,
    check_metadata_address,
    fetch_bearer,
    read_secret_file,
)

AUTHORITY = "https://login.microsoftonline.com"
METADATA = "http://169.254.169.254"
RESOURCE = "https://cognitiveservices.azure.com"
ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


def make_signer(environment: Mapping[str, str]) -> BearerSigner:
    """Raises `InvalidRequest` for an environment that says half of what is needed, or names an address that is not near."""
    client, tenant = environment.get("AZURE_CLIENT_ID"), environment.get("AZURE_TENANT_ID")
    secret, file = environment.get("AZURE_CLIENT_SECRET"), environment.get("AZURE_FEDERATED_TOKEN_FILE")
    if not secret and not file:
        return _use_managed_identity(environment, client)
    if not client or not tenant:
        given = "AZURE_CLIENT_SECRET" if secret else "AZURE_FEDERATED_TOKEN_FILE"
        raise InvalidRequest(f"{given} needs AZURE_TENANT_ID and AZURE_CLIENT_ID beside it; set all three", param="providers")
    authority = environment.get("AZURE_AUTHORITY_HOST") or AUTHORITY
    authority = authority if "//" in authority else f"https://{authority}"
    url = f"{authority.rstrip('/')}/{tenant}/oauth2/v2.0/token"
    form = {"grant_type": "client_credentials", "client_id": client, "scope": f"{RESOURCE}/.default"}

    async def fetch() -> Expiring[str]:
        if secret:
            hint = "check AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
            return await fetch_bearer(url, form={**form, "client_secret": secret}, hint=hint)
        # The file is replaced while we run.
        token = read_secret_file(file or "", "AZURE_FEDERATED_TOKEN_FILE")
        assertion = {"client_assertion_type": ASSERTION, "client_assertion": token}
        return await fetch_bearer(url, form={**form, **assertion}, hint="check the federated credential of AZURE_CLIENT_ID")

    return BearerSigner(fetch)


def _use_managed_identity(environment: Mapping[str, str], client: str | None) -> BearerSigner:
    query = {"resource": RESOURCE, **({"client_id": client} if client else {})}
    endpoint, secret = environment.get("IDENTITY_ENDPOINT"), environment.get("IDENTITY_HEADER")
    if endpoint and secret:
        url = check_metadata_address(endpoint, "IDENTITY_ENDPOINT")
        query, headers = {**query, "api-version": "2019-08-01"}, {"X-IDENTITY-HEADER": secret}
    else:
        variable = "AZURE_POD_IDENTITY_AUTHORITY_HOST"
        base = check_metadata_address(environment.get(variable) or METADATA, variable)
        url = f"{base.rstrip('/')}/metadata/identity/oauth2/token"
        query, headers = {**query, "api-version": "2018-02-01"}, {"Metadata": "true"}
    hint = "set `key_env`, or AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, or give the machine an identity"

    async def fetch() -> Expiring[str]:
        return await fetch_bearer(url, query=query, headers=headers, hint=hint)

    return BearerSigner(fetch)
