from mainspring.parts import Command, Part

PART = Part(
    name="keys",
    commands=(
        Command("keys", "mainspring.features.keys.commands:app", "Creates, lists and revokes the API keys of a server.", "Serve"),
    ),
)
