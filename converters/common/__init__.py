"""What everything stands on: files of settings and answers, memory, dtypes, the hub, messages of the system."""
