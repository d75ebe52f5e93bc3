from mainspring.parts import Command, FileKind, Part

PART = Part(
    name="workflows",
    commands=(
        Command(
            "workflows",
            "mainspring.features.workflows.commands:app",
            "Lists, shows, runs and resumes workflows that are defined in files.",
            "Agents and workflows",
        ),
    ),
    files=(FileKind("workflow", "mainspring.features.workflows.workflow_definition:file_schema"),),
)
