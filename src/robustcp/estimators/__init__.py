"""The estimators: arguments to a specification, a plan for the data, and the fit."""
