"""Where experts are that ranks have whole, as options say it."""
