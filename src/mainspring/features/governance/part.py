from mainspring.parts import Command, Part

PART = Part(
    name="governance",
    commands=(
        Command(
            "policy",
            "mainspring.features.governance.commands:app",
            "Shows the policies of the settings, and tries them out on calls.",
            "Governance",
        ),
    ),
)
