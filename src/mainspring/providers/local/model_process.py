"""The process a local model lives in: `python -m mainspring.providers.local.model_process`.

It reads one line of JSON from its standard input, a `ModelOrder`, loads the model, and writes the address at which llama.cpp's
own server then listens. It runs until its standard input ends: when the parent closes the pipe, or dies in any way.
"""

import os
import sys

import msgspec
from msgspec import Struct


class ModelOrder(Struct, frozen=True):
    path: str
    context_tokens: int
    threads: int
    api_key: str
    name: str
    slots: int
    temperature: float | None = None
    top_p: float | None = None


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=ModelOrder)
    # Threads that spin while they wait cost ten times the time on a machine that does anything else. Read as the library loads.
    os.environ.update(OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="0")
    from xllamacpp import CommonParams, Server  # type: ignore[import-untyped]

    settings = CommonParams()
    settings.model.path = order.path
    settings.model_alias = {order.name}
    settings.n_ctx = order.context_tokens
    settings.n_parallel = order.slots
    settings.kv_unified = True
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = order.threads
    # It keeps prompts of ended conversations; the default is 8 GiB of them.
    settings.cache_ram_mib = 0
    settings.use_jinja = True
    settings.hostnames = ["127.0.0.1"]
    settings.port = 0
    settings.api_keys = [order.api_key]
    settings.ui = settings.endpoint_slots = settings.endpoint_props = False
    # Small models talk in circles. This makes it unlikely that what was said is said again, word for word and at length.
    settings.sampling.dry_multiplier = 0.8
    # A request that names its own overrides these.
    if order.temperature is not None:
        settings.sampling.temp = order.temperature
    if order.top_p is not None:
        settings.sampling.top_p = order.top_p
    settings.verbosity = 1
    try:
        server = Server(settings)
    except RuntimeError as error:
        sys.exit(str(error))
    print(server.listening_address, flush=True)
    # Nobody reads on; whatever is still printed belongs to the complaints.
    os.dup2(2, 1)
    sys.stdin.buffer.read()
    # The server's threads may be busy for a long time yet.
    os._exit(0)


if __name__ == "__main__":
    main()
