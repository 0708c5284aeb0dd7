-- Names and majors of interfaces as numbers, for the rows that there are many of. 0 stands for none.
CREATE TABLE interface_key (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL,
    major BIGINT NOT NULL,
    UNIQUE (name, major)
);
