from mainspring.parts import Command, Part

PART = Part(
    name="models",
    commands=(
        Command(
            "models",
            "mainspring.features.models.commands:app",
            "Lists the models that can be asked, pulls one to this machine, and shows or forgets what is known of one.",
            "Diagnose",
        ),
        Command(
            "doctor",
            "mainspring.features.models.doctor:doctor",
            "Asks every configured model a few small questions, and shows what it can really do.",
            "Diagnose",
        ),
    ),
)
