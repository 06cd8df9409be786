"""The verbs that train, and how a run is shown."""
