"""Reserved addresses of aws on nodes."""
