"""Reserved addresses of gcp on nodes."""
