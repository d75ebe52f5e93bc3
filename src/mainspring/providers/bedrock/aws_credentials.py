"""Where the keys of Amazon come from: the environment, a web identity, the shared files, the container, the machine.

The order and the names of the variables are those of Amazon's own clients.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from configparser import ConfigParser, Error, SectionProxy
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

import msgspec
from msgspec import Struct

from mainspring.core.errors import BadOutput, InvalidRequest, Unauthorized
from mainspring.providers.bedrock.sigv4 import AwsKeys
from mainspring.providers.credentials import (
    Expiring,
    check_metadata_address,
    decode_credential,
    fetch_credential,
    read_secret_file,
)

Keys = Expiring[AwsKeys]
Fetch = Callable[[], Awaitable[Keys]]

METADATA = "http://169.254.169.254"
CONTAINER = "http://169.254.170.2"
HINT = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, an `aws_profile`, AWS_BEARER_TOKEN_BEDROCK, or give the machine a role"


def find_region(environment: Mapping[str, str], profile: str | None) -> str | None:
    name = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return name or _read_profile(environment, profile or environment.get("AWS_PROFILE") or "default").get("region")


def find_source(environment: Mapping[str, str], profile: str | None, region: str) -> Fetch:
    """What fetches the keys. Raises `InvalidRequest` for a profile that there is not, or that we cannot use."""
    if profile is None and environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        return _always(_keys_of(environment, ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")))
    if profile is None and (file := environment.get("AWS_WEB_IDENTITY_TOKEN_FILE")) and (role := environment.get("AWS_ROLE_ARN")):
        return _use_web_identity(environment, file, role, environment.get("AWS_ROLE_SESSION_NAME"), region)
    wanted = profile or environment.get("AWS_PROFILE")
    found = _read_profile(environment, wanted or "default")
    if "aws_access_key_id" in found:
        return _use_profile(environment, wanted or "default")
    if "web_identity_token_file" in found and "role_arn" in found:
        file, role = found["web_identity_token_file"], found["role_arn"]
        return _use_web_identity(environment, file, role, found.get("role_session_name"), region)
    if wanted is not None:
        kinds = [
            name
            for name in ("source_profile", "credential_source", "credential_process", "sso_session", "sso_start_url")
            if name in found
        ]
        why = f"uses `{kinds[0]}`, which is not supported here" if kinds else "has no keys"
        advice = "name another, or put the output of `aws configure export-credentials` into the environment"
        raise InvalidRequest(f"the AWS profile `{wanted}` {why}; {advice}", param="providers")
    return _use_container(environment) or _use_machine(environment)


def _use_profile(environment: Mapping[str, str], profile: str) -> Fetch:
    async def fetch() -> Keys:
        # Other programs renew what is in the file.
        found = _read_profile(environment, profile)
        return Expiring(_keys_of(found, ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")))

    return fetch


def _use_web_identity(environment: Mapping[str, str], file: str, role: str, session: str | None, region: str) -> Fetch:
    url = environment.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.{name_domain(region)}"

    async def fetch() -> Keys:
        token = read_secret_file(file, "AWS_WEB_IDENTITY_TOKEN_FILE")
        form = {"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": role, "WebIdentityToken": token}
        hint = f"check the trust policy of the role `{role}`"
        data = await fetch_credential(url, form={**form, "RoleSessionName": session or "mainspring"}, hint=hint)
        try:
            found = {element.tag.rpartition("}")[2]: element.text or "" for element in ElementTree.fromstring(data).iter()}
            return _Credentials(
                found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"], found["Expiration"]
            ).build()
        except (ElementTree.ParseError, KeyError, ValueError) as error:
            raise BadOutput(f"{url} answered with no credentials; is it a token service?") from error

    return fetch


def _use_container(environment: Mapping[str, str]) -> Fetch | None:
    if relative := environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        url = f"{CONTAINER}/{relative.lstrip('/')}"
    elif full := environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        url = check_metadata_address(full, "AWS_CONTAINER_CREDENTIALS_FULL_URI")
    else:
        return None

    async def fetch() -> Keys:
        token = environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
        if file := environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
            token = read_secret_file(file, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        headers = {"Authorization": token} if token else {}
        return _decode(await fetch_credential(url, headers=headers, hint="check the role of the container"), url)

    return fetch


def _use_machine(environment: Mapping[str, str]) -> Fetch:
    variable = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
    base = check_metadata_address(environment.get(variable) or METADATA, variable).rstrip("/")
    is_off = environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"

    async def fetch() -> Keys:
        if is_off:
            raise Unauthorized(f"no credentials: AWS_EC2_METADATA_DISABLED is set, and there are no others; {HINT}")
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
        token = (await fetch_credential(f"{base}/latest/api/token", method="PUT", headers=lifetime, hint=HINT)).decode()
        headers = {"X-aws-ec2-metadata-token": token.strip()}
        url = f"{base}/latest/meta-data/iam/security-credentials/"
        role = (await fetch_credential(url, headers=headers, hint=HINT)).decode().split("\n")[0].strip()
        return _decode(await fetch_credential(f"{url}{role}", headers=headers, hint=HINT), url)

    return fetch


def name_domain(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _always(keys: AwsKeys) -> Fetch:
    async def fetch() -> Keys:
        return Expiring(keys)

    return fetch


def _read_profile(environment: Mapping[str, str], profile: str) -> Mapping[str, str]:
    """What both shared files say of the profile; that of the credentials takes precedence."""
    home = Path(environment.get("HOME") or "~").expanduser() / ".aws"
    config = environment.get("AWS_CONFIG_FILE") or str(home / "config")
    secrets = environment.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / "credentials")
    section = profile if profile == "default" else f"profile {profile}"
    return {**_read_section(config, section), **_read_section(secrets, profile)}


def _read_section(file: str, section: str) -> SectionProxy | dict[str, str]:
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(Path(file).expanduser())
    except (Error, UnicodeError) as error:
        # What cannot be read may be a secret.
        message = f"`{file}` is no AWS configuration file ({type(error).__name__}); correct it"
        raise InvalidRequest(message, param="providers") from error
    return parser[section] if parser.has_section(section) else {}


def _keys_of(found: Mapping[str, str], names: tuple[str, str, str]) -> AwsKeys:
    id, secret, token = (found.get(name, "") for name in names)
    if not id or not secret:
        raise Unauthorized(f"no credentials: {names[0]} or {names[1]} is missing; {HINT}")
    return AwsKeys(id, secret, token or None)


class _Credentials(Struct, gc=False, rename="pascal"):
    access_key_id: str
    secret_access_key: str
    token: str
    expiration: str

    def build(self) -> Keys:
        until = datetime.fromisoformat(self.expiration.replace("Z", "+00:00")).timestamp()
        return Expiring(AwsKeys(self.access_key_id, self.secret_access_key, self.token), max(until, time.time()))


def _decode(data: bytes, url: str) -> Keys:
    return decode_credential(data, _credentials, url).build()


_credentials = msgspec.json.Decoder(_Credentials)
