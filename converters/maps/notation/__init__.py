"""The notation of maps: text read and written."""
