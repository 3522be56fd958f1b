"""One run: its folder, configuration, passes over images, processes and progress."""
