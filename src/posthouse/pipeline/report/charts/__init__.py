"""Charts as inline SVG, each drawn for a width, so that its labels keep their size on a phone."""
