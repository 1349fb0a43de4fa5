"""One file a rule: how a registered cache is shown as pages. Imports cache, errors and algebra."""
