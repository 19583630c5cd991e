"""Plugins for pytest that make the product slower, to see that the regression suite notices."""
