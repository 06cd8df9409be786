"""Whether an adapter may be merged into a base: was it trained on it, and is it in there already?"""
