from mainspring.parts import Command, Part

PART = Part(
    name="audit",
    commands=(
        Command(
            "audit",
            "mainspring.features.audit.commands:app",
            "Verifies and lists the audit log: every verdict, every call, every answer of a person.",
            "Governance",
        ),
        Command(
            "explain",
            "mainspring.features.audit.commands:explain",
            "Says which rule decided about a call and why, who approved it, and what came of it.",
            "Governance",
        ),
    ),
)
