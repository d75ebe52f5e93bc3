"""The console as a part: its pages and the demo, which any process that drives runs can play."""

from mainspring.parts import Host, Part, PartContents, ServedPart


def build(settings: object) -> PartContents:
    from mainspring.features.console.demo.demo_run import DemoProvider, DemoTools  # every start of a command reads this module

    def serve(host: Host) -> ServedPart:
        from mainspring.features.console.routes import ConsoleRoutes  # only a server needs its libraries

        return ServedPart(ConsoleRoutes(host.engine).endpoints())

    return PartContents(executors=(DemoTools(),), wrap=DemoProvider, serve=serve)


PART = Part(name="console", build=build)
