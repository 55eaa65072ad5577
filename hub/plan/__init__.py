"""Pure: desired against observed, the guard between them, and the writes that follow."""
