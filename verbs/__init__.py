"""The verbs of the command line: options in, a job, its outcome out."""
