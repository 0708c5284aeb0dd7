//! Assembly: from settings to running tasks.
