"""The bench: scorers x reducers x label sources x budgets on one frozen model, compared in pairs."""
