-- A change that a person has not decided on is called pending everywhere.
UPDATE review SET state = 'pending' WHERE state = 'waiting';
