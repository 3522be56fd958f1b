"""A campaign against the program: kills, bad inputs, damaged folders, full disks."""
