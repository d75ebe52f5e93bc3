"""Text that a model wrote, made fit to be kept: half of a surrogate pair, which no encoding takes, becomes a mark."""


def clean(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_value(value: object) -> object:
    """The same for all text in a value as JSON has them."""
    match value:
        case str():
            return clean(value)
        case dict():
            return {clean(str(name)): clean_value(each) for name, each in value.items()}
        case list() | tuple():
            return [clean_value(each) for each in value]
        case _:
            return value
