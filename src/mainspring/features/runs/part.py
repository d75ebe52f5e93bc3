from mainspring.parts import Command, Part

PART = Part(
    name="runs",
    contents="mainspring.storage.transfer.run_content:place_runs",
    commands=(
        Command("run", "mainspring.features.runs.commands:run", "Runs an agent and shows it live.", "Run"),
        Command("resume", "mainspring.features.runs.commands:resume", "Resumes runs whose process ended before they did.", "Run"),
        Command("runs", "mainspring.features.runs.commands:runs", "Lists the runs of a database, newest first.", "Data"),
        Command("show", "mainspring.features.runs.commands:show", "Shows a run of the database as it was shown live.", "Data"),
        Command("vacuum", "mainspring.features.runs.commands:vacuum", "Shrinks a database file after deletions.", "Data"),
        Command("prune", "mainspring.features.runs.commands:prune", "Deletes the runs that ended long ago.", "Data"),
    ),
)
