"""The console as a part: its pages and the demo, which any process that drives runs can play."""

from typing import TYPE_CHECKING

from mainspring.late_module import LateModule
from mainspring.parts import Host, Part, PartContents, ServedPart

# Every start of a command reads this module.
if TYPE_CHECKING:
    from mainspring.features.console import routes
    from mainspring.features.console.demo import demo_run
else:
    demo_run = LateModule("mainspring.features.console.demo.demo_run")
    routes = LateModule("mainspring.features.console.routes")


def build(settings: object) -> PartContents:
    def serve(host: Host) -> ServedPart:
        return ServedPart(routes.ConsoleRoutes(host.engine).endpoints())

    return PartContents(executors=(demo_run.DemoTools(),), wrap=demo_run.DemoProvider, serve=serve)


PART = Part(name="console", build=build)
