"""What an engine registers: specs, documents, axes and pages."""
