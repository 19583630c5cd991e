"""Pure decisions: values in, values out. No clock, file, environment, thread or array."""
