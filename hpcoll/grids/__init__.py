"""Arrays that ranks share: the exchange of their ghost layers, their distribution, and files of them."""
