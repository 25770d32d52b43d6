"""The cards of the page, one file each: `cards(figures)` returns their markup."""
