"""Tables, figures and the report's page. They read records and never run a model."""
