"""The pages of docs/ against the code: what they name exists, and what they say to apply would be accepted."""
