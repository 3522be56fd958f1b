"""Tables, figures and the explorer: they read records, never models."""
