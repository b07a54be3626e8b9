"""What silver held back: which rows are meant, what they are counted by, and how they are judged again."""
