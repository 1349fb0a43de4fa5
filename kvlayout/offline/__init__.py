"""From a model's config.json and a deployment to a registration, with no GPU, no torch and no engine."""
