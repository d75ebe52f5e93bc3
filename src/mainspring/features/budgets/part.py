from mainspring.parts import Command, Part

PART = Part(
    name="budgets",
    commands=(
        Command(
            "budgets",
            "mainspring.features.budgets.commands:app",
            "Lists and shows shared budgets, suspends and activates them.",
            "Governance",
        ),
    ),
)
