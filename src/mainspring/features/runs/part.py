from mainspring.parts import Command, Part

PART = Part(
    name="runs",
    commands=(
        Command("runs", "mainspring.features.runs.commands:runs", "Lists the runs of a database, newest first.", "Data"),
        Command("show", "mainspring.features.runs.commands:show", "Shows a run of the database as it was shown live.", "Data"),
    ),
)
