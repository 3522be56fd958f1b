"""The embedded demo: a procedural image generator and a small trained backbone."""
