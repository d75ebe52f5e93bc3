from mainspring.parts import Command, Part

PART = Part(
    name="traces",
    commands=(
        Command(
            "traces",
            "mainspring.features.traces.commands:app",
            "Lists runs as traces, and draws where the time of one went.",
            "Diagnose",
        ),
        Command(
            "replay",
            "mainspring.features.traces.commands:replay",
            "Replays a stored run without model and tools, and shows that it ends the same.",
            "Diagnose",
        ),
    ),
)
