"""Breaking text into lines of a limited width."""


def wrap(text, width):
    """Break at spaces so that no line is longer than width; a longer word stands alone, cut into pieces."""
    if width < 1:
        raise ValueError("width must be positive")
    lines = []
    line = ""
    for word in text.split():
        while len(word) > width:
            if line:
                lines.append(line)
                line = ""
            lines.append(word[:width])
            word = word[width:]
        if not line:
            line = word
        elif len(line) + 1 + len(word) < width:
            line = line + " " + word
        else:
            lines.append(line)
            line = word
    if line:
        lines.append(line)
    return lines


def indent(text, prefix):
    """Put prefix in front of every line that is not blank."""
    return "\n".join(prefix + line if line.strip() else line for line in text.split("\n"))


def shorten(text, width, dots="..."):
    """Cut at a space so that the text and the dots fit into width."""
    if len(text) <= width:
        return text
    kept = wrap(text, width - len(dots))
    return kept[0] + dots
