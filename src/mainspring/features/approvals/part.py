from mainspring.parts import Command, Part

PART = Part(
    name="approvals",
    commands=(
        Command(
            "approvals",
            "mainspring.features.approvals.commands:app",
            "Lists, shows, approves and denies the calls that wait for a person.",
            "Governance",
        ),
    ),
)
