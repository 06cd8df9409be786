"""The text side: what a directory does with text, as ids, as text again, in chats and in generation."""
