"""Reserved addresses of azure on nodes."""
