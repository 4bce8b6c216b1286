"""Breaking text into lines."""


def shorten(text: str, width: int) -> str:
    """The text, cut to `width` characters with three dots where it is longer."""
    if len(text) <= width:
        return text
    return text[: width - 3] + "..."


def wrap(text: str, width: int) -> list[str]:
    """Lines of whole words, each at most `width` characters long."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if not line:
            line = word
        elif len(line) + 1 + len(word) < width:
            line += " " + word
        else:
            lines.append(line)
            line = word
    return [*lines, line] if line else lines
