-- Names and majors of interfaces as numbers, for the rows that there are many of. 0 stands for none.
CREATE TABLE interface_key (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    major INTEGER NOT NULL,
    UNIQUE (name, major)
);
