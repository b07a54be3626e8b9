"""What a payload is made of: bytes into a document, a document into columns, with bounds on what each may cost."""
