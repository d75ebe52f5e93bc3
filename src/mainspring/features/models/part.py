from mainspring.parts import Command, Part

PART = Part(
    name="models",
    commands=(
        Command(
            "models",
            "mainspring.features.models.commands:models",
            "Lists the models that can be asked: configured, or found in the environment and on this machine.",
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
