"""Training of learned reducers on a frozen backbone, without labels, and their files."""
