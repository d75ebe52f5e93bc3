from mainspring.parts import Command, Part

PART = Part(
    name="backup",
    commands=(
        Command("backup", "mainspring.features.backup.commands:backup", "Writes all that is kept into one file.", "Data"),
        Command("restore", "mainspring.features.backup.commands:restore", "Fills an empty database from a backup.", "Data"),
        Command("upgrade", "mainspring.features.backup.commands:upgrade", "Brings the tables of a database up to date.", "Data"),
        Command("migrate", "mainspring.features.backup.commands:migrate", "Moves all that is kept to another database.", "Data"),
    ),
)
